"""What can be read in a plot."""

from xml.etree import ElementTree


def texts(drawing: str) -> list[str]:
    """Return the texts of a plot; of one that comes in two widths, those of the wide one."""
    root = ElementTree.fromstring(drawing)
    wide = root.find("*[@class='on-wide']")
    return ["".join(one.itertext()) for one in (root if wide is None else wide).iter() if one.tag.endswith("text")]
