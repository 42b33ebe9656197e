# For mypy, which meets this module in a cycle of imports and would not know yet what its __getattr__ returns.
from typing import Any

def __getattr__(name: str) -> Any: ...
