"""The board over a real TCPStore: ranks are threads with a connection each."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import pytest
from torch.distributed import TCPStore

from eval_core.errors import CalledOffError, WorkerError
from eval_core.work.board import Board
from eval_core.work.place import Place

PATIENCE = 1.0


def place(rank: int, ranks: int) -> Place:
    return Place(rank=rank, world_size=ranks, local_rank=rank, node=0, host="host", launched=True)


@pytest.fixture
def boards() -> Callable[[int], list[Board]]:
    def make(ranks: int) -> list[Board]:
        server = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        patience = timedelta(seconds=30)
        stores = [TCPStore("127.0.0.1", server.port, is_master=False, timeout=patience) for _ in range(ranks - 1)]
        return [Board(store, place(rank, ranks), PATIENCE) for rank, store in enumerate([server, *stores])]

    return make


def each(boards: list[Board], does: Callable[[Board], Any]) -> list[Future[Any]]:
    with ThreadPoolExecutor(len(boards)) as pool:
        return [pool.submit(does, board) for board in boards]


def idle() -> None:
    pass


def test_all_ranks_learn_what_each_reports(boards: Callable) -> None:
    met = each(boards(6), lambda board: board.meet({"node": board.place.rank // 2}, idle))
    assert [future.result() for future in met] == [[{"node": rank // 2} for rank in range(6)]] * 6


def test_a_process_that_is_alone_meets_itself(boards: Callable) -> None:
    (board,) = boards(1)
    assert board.meet("here", idle) == ["here"]
    board.leave()


def test_who_does_not_come_is_named(boards: Callable) -> None:
    rank0, rank1, _, _ = boards(4)
    met = each([rank0, rank1], lambda board: board.meet("here", idle))
    with pytest.raises(WorkerError, match="no sign of life from rank 2, 3 for 1 s"):
        met[0].result()
    with pytest.raises(CalledOffError, match="no sign of life from rank 2, 3"):
        met[1].result()


def test_rank_0_is_named_by_those_who_wait_for_it(boards: Callable) -> None:
    for waits in (lambda board: board.meet("here", idle), lambda board: board.wait_for_tickets(1)):
        _, rank1 = boards(2)
        (future,) = each([rank1], waits)
        with pytest.raises(WorkerError, match="no sign of life from rank 0 for 1 s"):
            future.result()


def test_waiting_for_tickets_ends_with_the_last(boards: Callable) -> None:
    rank0, rank1 = boards(2)
    with ThreadPoolExecutor() as pool:
        waiting = pool.submit(rank1.wait_for_tickets, 3)
        assert [rank0.ticket() for _ in range(2)] == [0, 1]
        rank0.beat()
        assert (rank0.given(), rank1.given(), waiting.done()) == (2, 2, False)
        assert rank0.ticket() == 2
        assert waiting.result(timeout=20) is None


def test_a_waiting_rank_hears_that_the_attempt_is_called_off(boards: Callable) -> None:
    rank0, rank1 = boards(2)
    with ThreadPoolExecutor() as pool:
        waiting = pool.submit(rank1.wait_for_tickets, 1)
        rank0.call_off("rank 0: the disk is full", WorkerError.exit_code)
        with pytest.raises(CalledOffError, match="the disk is full"):
            waiting.result(timeout=20)


def test_what_is_laid_out_can_be_read_before_all_have_published(boards: Callable) -> None:
    rank0, rank1, _ = boards(3)
    rank0.lay_out("state", {"shards": 0})
    rank1.publish("state/1", {"shards": 5})
    assert rank0.read_all("state") == [{"shards": 0}, {"shards": 5}, {"shards": 0}]
