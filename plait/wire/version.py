"""Which protocol this plait speaks."""

from typing import Final

PROTOCOL_VERSION: Final = 2
"""Of the messages in `protos/plait/wire`: rises where an older end would misread a newer one."""
