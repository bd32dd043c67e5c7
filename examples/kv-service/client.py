#!/usr/bin/env python3
"""A client of the native RPC in Python, written from docs/wire-rpc.md alone, standard library only.

    python3 client.py 127.0.0.1:7070 set colour blue
    python3 client.py 127.0.0.1:7070 get colour
    python3 client.py 127.0.0.1:7070 many colour 1000
    python3 client.py --vectors testdata/wire/rpc.txt
"""

import secrets
import socket
import struct
import sys
import time

VERSION = 1
HEADER = struct.Struct("<IBBHQ")  # length, version, kind, length of fields, call
REQUEST, ANSWER, REFUSAL, FAILURE, FEEDBACK, REPORT, CANCEL, GOODBYE = range(1, 9)
GET, SET = 1, 2
UNRANKED = 24 << 16
RANKS = 64 << 16
LARGEST = 1 << 20
SILENCE = 60.0  # seconds that a server takes to be reached, or to say something where no patience is given


class Refused(Exception):
    """Turned away: nothing was done. `advice` is elsewhere, later or never."""

    def __init__(self, reason, advice, pause=0.0):
        super().__init__(f"{reason}: {advice}")
        self.reason, self.advice, self.pause = reason, advice, pause


class Failed(Exception):
    """The handler failed."""

    def __init__(self, code, message):
        super().__init__(f"{message} (code {code})")
        self.code = code


def number(value):
    if len(value) > 8:
        raise ValueError("a number of more than eight bytes")
    return int.from_bytes(value, "little")


def field(tag, value):
    if isinstance(value, int):
        value = value.to_bytes((value.bit_length() + 7) // 8, "little")
    return bytes((tag, len(value))) + value


def frame(kind, call, fields=b"", payload=b""):
    length = HEADER.size - 4 + len(fields) + len(payload)
    return HEADER.pack(length, VERSION, kind, len(fields), call) + fields + payload


def read_frame(data):
    """(kind, call, {tag: value}, payload) and how long the frame is; None if it is not whole."""
    if len(data) < 4:
        return None
    (length,) = struct.unpack_from("<I", data)
    if length < HEADER.size - 4:
        raise ValueError("too-short")
    if length > LARGEST + 1024 + HEADER.size:
        raise ValueError("too-long")
    if len(data) > 4 and data[4] != VERSION:
        raise ValueError("version")
    if len(data) < 4 + length:
        return None
    _, _, kind, size, call = HEADER.unpack_from(data)
    if HEADER.size + size > 4 + length:
        raise ValueError("fields")
    fields, at, end = {}, HEADER.size, HEADER.size + size
    while at < end:
        if at + 2 > end or at + 2 + data[at + 1] > end:
            raise ValueError("fields")
        fields[data[at]] = bytes(data[at + 2 : at + 2 + data[at + 1]])
        at += 2 + data[at + 1]
    return (kind, call, fields, bytes(data[end : 4 + length])), 4 + length


class Client:
    """One connection, one caller. It sends what window and cursors allow."""

    def __init__(self, host, port):
        self.socket = socket.create_connection((host, port), timeout=SILENCE)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.caller = secrets.randbits(64) | 1
        self.data = bytearray()
        self.last_call = 0
        # Nothing was told yet that would hold.
        self.window, self.free, self.last, self.until = 1, 0, RANKS, 0.0
        self.sequence = 0
        self.shed = []
        self.goodbye = None

    def call(self, method, payload=b"", rank=UNRANKED, patience=None):
        return self.calls([(method, payload)], rank, patience)[0]

    def calls(self, requests, rank=UNRANKED, patience=None):
        """Calls that go out together, as far as there are credits. Answers in their order; a call
        that was refused, failed or was not answered within `patience` seconds is its exception."""
        for _, payload in requests:
            if len(payload) > LARGEST:
                raise ValueError(f"a payload of {len(payload)} bytes, {LARGEST} are allowed")
        deadline = None if patience is None else time.monotonic() + patience
        waiting, answers, given = {}, [None] * len(requests), rank
        for place, (method, payload) in enumerate(requests):
            lot = given & 0xFFFF == 0  # Names no user: by lot.
            rank = given | 1 + secrets.randbelow(0xFFFF) if lot else given
            self.listen(waiting, answers)
            while waiting and not self.may_send(rank, len(waiting)):
                self.take(waiting, answers, deadline)
            if deadline is not None and time.monotonic() >= deadline:
                answers[place] = TimeoutError("too late to be sent")
            elif self.goodbye:
                answers[place] = self.ended()
            elif rank >= self.told()[2]:
                self.shed.append(rank)
                answers[place] = Refused("rank", "never")
            else:
                left = len(requests) - place - 1
                waiting[self.send(method, payload, rank, lot, deadline, left)] = place
        while waiting:
            self.take(waiting, answers, deadline)
        if len(answers) == 1 and isinstance(answers[0], Exception):
            raise answers[0]
        return answers

    def told(self):
        """Window, free ranks and ranks let in. What was said holds for a while; before the first word
        and after the last one is over, one request at a time asks."""
        if time.monotonic() >= self.until:
            return 1, 0, RANKS
        return self.window, self.free, self.last

    def may_send(self, rank, out):
        window, free, _ = self.told()
        return out < window or rank < free

    def send(self, method, payload, rank, lot, deadline, demand):
        self.last_call += 1
        fields = field(1, method) + field(2, rank) + field(6, self.caller)
        if lot:
            fields += field(14, 1)
        if deadline is not None:
            fields += field(4, max(0, int((deadline - time.monotonic()) * 1e9)))
        if demand:
            fields += field(7, demand)
        if self.shed:
            fields += field(8, len(self.shed)) + field(9, secrets.choice(self.shed))
            self.shed = []
        self.wait_until(deadline)
        try:
            self.socket.sendall(frame(REQUEST, self.last_call, fields, payload))
        except OSError:
            self.socket.close()  # Nothing can follow half a frame.
            raise
        return self.last_call

    def listen(self, waiting, answers):
        """Does what has come says, without waiting for more."""
        self.socket.setblocking(False)
        try:
            while True:
                self.step(waiting, answers)
        except BlockingIOError:
            pass

    def take(self, waiting, answers, deadline):
        """Waits for one frame and does what it says. If none comes in time, the calls are given up."""
        try:
            self.wait_until(deadline)
            while not self.step(waiting, answers):
                self.wait_until(deadline)
        except socket.timeout:
            for place in waiting.values():
                answers[place] = TimeoutError("no answer in time; it may have been done")
            waiting.clear()

    def step(self, waiting, answers):
        """Does what the next frame says. If it is not whole yet, reads more of it and is false."""
        read = read_frame(self.data)
        if read is not None:
            del self.data[: read[1]]
            self.hear(*read[0], waiting, answers)
            return True
        more = self.socket.recv(1 << 16)
        if not more:
            raise self.ended()
        self.data += more
        return False

    def hear(self, kind, call, fields, payload, waiting, answers):
        # Absolute values, of which the latest count.
        if number(fields.get(33, b"")) > self.sequence:
            self.sequence = number(fields[33])
            self.window = number(fields[34]) if 34 in fields else 1 << 32
            self.free = number(fields[35]) if 35 in fields else 0
            self.last = number(fields[36]) if 36 in fields else RANKS
            holds = number(fields[37]) / 1e9 if 37 in fields else float("inf")
            self.until = time.monotonic() + holds
        if kind == GOODBYE:
            self.goodbye = farewell(number(fields.get(57, b"")))
        if call not in waiting:
            return
        place = waiting.pop(call)
        if kind == ANSWER:
            answers[place] = payload
        elif kind == REFUSAL:
            advice = {0: "elsewhere", 1: "later"}.get(number(fields.get(51, b"")), "never")
            pause = number(fields.get(52, b"")) / 1e9
            answers[place] = Refused(fields.get(48, b"delay").decode(), advice, pause)
        elif kind == FAILURE:
            answers[place] = Failed(number(fields.get(56, b"")), payload.decode(errors="replace"))

    def wait_until(self, deadline):
        self.socket.settimeout(SILENCE if deadline is None else max(deadline - time.monotonic(), 0.001))

    def ended(self):
        said = f" and said: {self.goodbye}" if self.goodbye else ""
        return ConnectionError(f"the server closed the connection{said}")

    def close(self):
        """Says goodbye, so that the server has this caller's credits back."""
        try:
            self.socket.sendall(frame(GOODBYE, 0, field(57, 1)))
        except OSError:
            pass  # It has gone before.
        finally:
            self.socket.close()


def farewell(why):
    return {2: "malformed", 3: "violation", 4: "idle"}.get(why, "leaving")


NAMES = {REQUEST: "request", ANSWER: "answer", REFUSAL: "refusal", FAILURE: "failure",
         FEEDBACK: "feedback", REPORT: "report", CANCEL: "cancel", GOODBYE: "goodbye"}


def describe(data):
    """What a frame says, as the examples in testdata/wire/rpc.txt put it."""
    try:
        read = read_frame(data)
        if read is None or read[1] != len(data):
            return "incomplete"
        return meaning(*read[0])
    except ValueError as error:
        return f"error {error}" if str(error) in ("version", "too-long", "too-short") else "error fields"


def progress(numbers):
    elapsed, total, work, total_work = (numbers.get(tag, 0) for tag in range(10, 14))
    said = elapsed or total or work or total_work
    return [f"progress={elapsed}/{total} work={work}/{total_work}"] if said else []


def meaning(kind, call, fields, payload):
    if kind not in NAMES:
        return "skip"
    words = [NAMES[kind], str(call)]
    rank = lambda value: f"{value >> 16},{value & 0xFFFF}"
    numbers = {tag: number(value) for tag, value in fields.items()
               if tag in (*range(1, 3), *range(4, 15), *range(32, 40), 51, 52, 56, 57)}
    said = lambda tag, name: words.append(f"{name}={numbers[tag]}") if numbers.get(tag) else None
    if kind in (REQUEST, REPORT):
        said(1, "method")
        if numbers.get(2, UNRANKED) != UNRANKED:
            words.append(f"rank={rank(numbers[2])}")
        if 3 in fields:
            words.append(f"workflow={fields[3].decode()}")
        if 4 in numbers:
            words.append(f"left={numbers[4]}")
        for tag, name in ((5, "attempt"), (6, "caller"), (7, "demand"), (8, "shed")):
            said(tag, name)
        if numbers.get(8):
            words.append(f"sample={rank(numbers[9])}")
        words += progress(numbers)
        said(14, "lot")
    elif kind == GOODBYE:
        words.append(farewell(numbers.get(57)))
    elif kind != CANCEL:
        if any(tag in numbers for tag in range(32, 40)):
            words.append(f"gate={numbers.get(32, 0)} sequence={numbers.get(33, 0)}")
        for tag, name in ((34, "window"), (35, "free"), (36, "last"), (37, "holds")):
            if tag in numbers:
                words.append(f"{name}={numbers[tag]}")
        words += progress(numbers)
        if kind == REFUSAL:
            known = "delay rank downstream wait expired infeasible full pushed-out credit rate quota " \
                    "utilization throttle chance budget draining"
            reason = fields.get(48, b"delay").decode()
            words.append(f"reason={reason if reason in known.split() else 'delay'}")
            advice = numbers.get(51, 0)
            words.append({0: "elsewhere", 1: f"later={numbers.get(52, 0)}"}.get(advice, "never"))
        if kind == FAILURE:
            words.append(f"code={numbers.get(56, 0)}")
    if payload:
        words.append('"' + payload.decode() + '"')
    return " ".join(words)


def check_vectors(path):
    count = 0
    for line in open(path, encoding="utf-8"):
        if line.startswith("#") or not line.strip():
            continue
        data, said = line.split(" -> ")
        got = describe(bytearray.fromhex(data))
        assert got == said.strip(), f"{line.strip()}\nread as {got}"
        count += 1
    print(f"{count} examples read as they say")


def main(arguments):
    if len(arguments) == 2 and arguments[0] == "--vectors":
        return check_vectors(arguments[1])
    takes = {"get": 3, "set": 4, "many": 4}
    if len(arguments) < 2 or len(arguments) != takes.get(arguments[1]):
        sys.exit(__doc__)
    host, _, port = arguments[0].rpartition(":")
    if not port.isdigit():
        sys.exit(f"{arguments[0]}: a host and a port, as 127.0.0.1:7070")
    what, key, rest = arguments[1], arguments[2].encode(), arguments[3:]
    try:
        client = Client(host, int(port))
        if what == "set":
            client.call(SET, bytes((len(key),)) + key + rest[0].encode(), patience=5)
        elif what == "get":
            print(client.call(GET, key, patience=5).decode())
        elif what == "many":
            answers = client.calls([(GET, key)] * int(rest[0]))
            served = sum(isinstance(answer, bytes) for answer in answers)
            print(f"{served} of {len(answers)} served, window {client.window}")
    except Refused as refused:
        sys.exit(f"refused: {refused}")
    except Failed as failed:
        sys.exit(f"failed: {failed}")
    except (OSError, ValueError) as error:
        sys.exit(f"{arguments[0]}: {error}")
    client.close()


if __name__ == "__main__":
    main(sys.argv[1:])
