"""Old names keep working, and the warning names the new one."""

from __future__ import annotations

import pytest

from midspan.deprecation import renamed_argument, renamed_attribute


@renamed_argument("wanted", "requested")
def double(*, requested: int) -> int:
    return 2 * requested


def test_renamed_argument_old_keyword_warns_and_is_passed_on() -> None:
    with pytest.warns(DeprecationWarning, match=r"double\(wanted=\) is now requested=") as caught:
        assert double(wanted=4) == 8  # type: ignore[call-arg]
    assert caught[0].filename == __file__
    assert double(requested=5) == 10


def test_renamed_attribute_unknown_name_raises_attribute_error() -> None:
    with pytest.warns(DeprecationWarning, match="package.Old is now package.New"):
        assert renamed_attribute("package", "Old", {"Old": "New"}) == "New"
    with pytest.raises(AttributeError, match="'package' has no attribute 'Other'"):
        renamed_attribute("package", "Other", {"Old": "New"})
