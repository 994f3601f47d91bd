"""The precision of matrix products and convolutions in a block and after it."""

from typing import Any

import torch

from proxemic.precision import full_precision


def test_nothing_is_rounded_in_full_precision_and_all_is_as_before_after_it() -> None:
    backends: Any = torch.backends
    operations = (backends.mkldnn.matmul, backends.cuda.matmul, backends.cudnn.conv)
    before = [operation.fp32_precision for operation in operations]
    assert before[-1] == "tf32"  # torch's default
    with full_precision():
        assert {operation.fp32_precision for operation in operations} == {"ieee"}
        assert torch.backends.cudnn.allow_tf32 is False  # which can be asked, as some of torch does
    assert [operation.fp32_precision for operation in operations] == before
    assert torch.backends.cudnn.allow_tf32 is True
