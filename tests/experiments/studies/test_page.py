"""What a command makes of a page is replaced, and nothing else is touched."""

import pytest

from experiments.studies.page import PageError, page, replaced

WRITTEN = """# A page

Words before. <!-- a remark -->

<!-- made: table -->
old
<!-- end: table -->

Words between.

<!-- made: plot-1 -->
old
<!-- end: plot-1 -->

Words after.
"""


def test_only_what_is_made_changes() -> None:
    new = replaced(WRITTEN, {"plot-1": "![plot](a.svg)\n", "table": "| a |\n"})
    assert new == WRITTEN.replace("made: table -->\nold\n", "made: table -->\n\n| a |\n\n").replace(
        "made: plot-1 -->\nold\n", "made: plot-1 -->\n\n![plot](a.svg)\n\n"
    )


def test_replacing_twice_is_replacing_once() -> None:
    parts = {"table": "x", "plot-1": "y", "new": "z"}
    once = replaced(WRITTEN, parts)
    assert replaced(once, parts) == once
    assert replaced(replaced(WRITTEN, dict.fromkeys(parts, "w")), parts) == once


def test_a_new_page_has_places_for_all() -> None:
    parts = {"a": "1", "b": "2"}
    assert replaced(page("Title", parts), parts) == page("Title", parts)


def test_a_part_without_a_place_goes_to_the_end() -> None:
    new = replaced(WRITTEN, {"table": "x", "plot-1": "y", "more": "z"})
    assert new.endswith("Words after.\n\n<!-- made: more -->\n\nz\n\n<!-- end: more -->\n")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("<!-- made: a -->", "'a' has no end"),
        ("\n<!-- end: a -->", "line 2: .* has not begun"),
        ("<!-- made: a --><!-- made: b --><!-- end: b -->", "within a part"),
        ("<!-- made: a --><!-- end: b -->", "has not begun"),
        ("<!-- made: a --><!-- end: a -->\n<!-- made: a --><!-- end: a -->", "line 2: .* twice"),
        ("<!-- made: c --><!-- end: c -->", "'c', of which nothing is made"),
    ],
)
def test_marks_out_of_order_are_named(text: str, said: str) -> None:
    with pytest.raises(PageError, match=said):
        replaced(text, {"a": "", "b": ""})
