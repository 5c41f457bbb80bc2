"""Every installed backend keeps every law of the short convolution."""

import pytest

from rebracket.ops.backend import INSTALLED
from rebracket.testing.convolution import LAWS, broken


@pytest.mark.parametrize("law", LAWS)
@pytest.mark.parametrize("backend", INSTALLED)
def test_law_holds(backend: str, law: str):
    assert broken(law, backend=backend) is None
