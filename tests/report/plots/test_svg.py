import re

from tenfold.report.plots.svg import INK, NARROW, draw_svg


def test_an_svg_takes_colour_and_font_from_the_page_and_fetches_nothing():
    svg = draw_svg("line", "a line", (NARROW, 2.0), lambda figure: figure.subplots().plot([1, 2], color=INK))
    assert "currentColor" in svg
    for absent in ("#010203", "DejaVu", "<metadata", "<style"):
        assert absent not in svg
    assert set(re.findall(r"https?://[^\"]*", svg)) == {"http://www.w3.org/2000/svg"}
