import pytest
import torch

from tgflow.nn import MemoryRows, MemoryUpdater, TimeEncoding


def made_rows(dtype: torch.dtype = torch.float64) -> MemoryRows:
    torch.manual_seed(0)
    clock = torch.tensor([[5, 9, 1, 3], [0, 0, 0, 0], [7, 7, 1, 3]])
    return MemoryRows(torch.randn(3, 6, dtype=dtype), clock, dim=2)


@pytest.mark.parametrize("cell", ["gru", "rnn"])
def test_updater_is_torchs_cell_on_the_whole_message(cell):
    rows = made_rows()
    updater = MemoryUpdater(2, 4, TimeEncoding(3), cell).double()
    torch_cell = (torch.nn.GRUCell if cell == "gru" else torch.nn.RNNCell)(9, 2).double()
    with torch.no_grad():
        torch_cell.weight_ih.copy_(
            torch.cat([updater.state_proj.weight, updater.time_proj.weight], 1)
        )
        torch_cell.bias_ih.copy_(updater.state_proj.bias)
        torch_cell.weight_hh.zero_()  # maps s_i once more than needed
        torch_cell.bias_hh.zero_()
        if cell == "gru":
            torch_cell.weight_hh[-2:] = updater.memory_proj.weight
            torch_cell.bias_hh[-2:] = updater.memory_proj.bias
    dt = (rows.mail_t - rows.last_update).double() * 0.5
    expected = torch_cell(torch.cat([rows.state, updater.time(dt)], 1), rows.memory)
    expected[1] = rows.memory[1]  # has no mail
    torch.testing.assert_close(updater(rows, 0.5), expected)


def test_unknown_cell():
    with pytest.raises(ValueError, match='must be "gru" or "rnn"'):
        MemoryUpdater(2, 4, TimeEncoding(3), "lstm")
