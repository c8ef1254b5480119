from tenfold.reports.exports import write_csv


def test_text_is_never_a_formula_and_numbers_stay_numbers():
    cells = {"=1+1": "@SUM(A1)", "loss": -0.5, "title": "-x", "plain": "a=b"}
    assert write_csv([cells]) == "'=1+1,loss,title,plain\n'@SUM(A1),-0.5,'-x,a=b\n"
