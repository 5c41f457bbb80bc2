"""Who mistypes a name is told the nearest, and all there are."""

from rebracket.ops.names import nearest


def test_the_nearest_is_named_and_all_are():
    assert nearest("peer", ("apple", "pear")) == ", did you mean 'pear'?; known are apple, pear"


def test_nothing_near_is_not_named():
    assert nearest("xylophone", {"pear": 1}) == "; known are pear"
    assert nearest("pear", []) == "; known are none"
