"""What every engine tries once on this processor, tried before nodes are forked: by one thread, so
that no pool of them is left behind, which a fork would not bring along."""

import torch

from node.engine.linear import packed_rows_min

_threads = torch.get_num_threads()
torch.set_num_threads(1)
packed_rows_min(torch.float32)
torch.set_num_threads(_threads)
