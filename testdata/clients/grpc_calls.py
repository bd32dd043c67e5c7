"""Calls every kind of method of grpc_service.py at argv[1], many times, and prints "done"."""

import sys
import threading

import grpc


def chat():
    """Sends the next message only after the answer to the last: nothing may be held back."""
    answered, arrived = [], threading.Semaphore(0)

    def say():
        for n in range(50):
            while len(answered) < n:
                arrived.acquire()
            yield b"%d" % n

    for answer in channel.stream_stream("/test.Service/Echo")(say(), timeout=60):
        answered.append(answer)
        arrived.release()
    return answered


with grpc.insecure_channel(sys.argv[1]) as channel:
    for n in range(200):
        assert channel.unary_unary("/test.Service/Once")(b"%d" % n, timeout=60) == b"once %d" % n
    assert list(channel.unary_stream("/test.Service/Count")(b"1000", timeout=60)) == [b"%d" % n for n in range(1000)]
    pieces = (b"x" * 10_000 for _ in range(100))
    assert channel.stream_unary("/test.Service/Total")(pieces, timeout=60) == b"1000000"
    assert chat() == [b"%d" % n for n in range(50)]
    # Several at once on one connection.
    calls = [channel.unary_unary("/test.Service/Once").future(b"%d" % n, timeout=60) for n in range(200)]
    assert [call.result() for call in calls] == [b"once %d" % n for n in range(200)]
    try:
        channel.unary_unary("/test.Service/Once")(b"fail", timeout=60)
    except grpc.RpcError as error:
        assert error.code() == grpc.StatusCode.NOT_FOUND, error
        assert error.details() == "nothing here", error
        assert ("why", "asked-to") in error.trailing_metadata(), error
    print("done")
