"""What the sidecar adds to requests of each kind: python3 xtask/lab/waits.py target/release/tidegate

A service and the sidecar before it, on loopback; each kind is asked directly and through the sidecar in turns. Prints
the medians, in milliseconds, from the first byte sent to the first byte of the answer that matters.
"""

import os, re, socket, statistics, subprocess, sys, tempfile, threading, time

OK = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n"


def serve(connection):
    lines = connection.makefile("rb")
    while line := lines.readline():
        fields = {}
        while head := lines.readline().strip():
            name, value = head.split(b":", 1)
            fields[name.lower()] = value.strip()
        if b"upgrade" in fields:
            connection.sendall(b"HTTP/1.1 101 Switching Protocols\r\nupgrade: websocket\r\nconnection: upgrade\r\n\r\n")
            while piece := connection.recv(4096):
                connection.sendall(piece)
        elif b"event-stream" in fields.get(b"accept", b""):
            connection.sendall(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\ndata: ok")
            return connection.close()
        elif b"transfer-encoding" in fields:
            # It answers while the body still comes.
            connection.sendall(OK + b"connection: close\r\n\r\nok")
            while lines.read1(4096):
                pass
        else:
            lines.read(int(fields.get(b"content-length", b"0")))
            connection.sendall(OK + b"\r\nok")


def listen(socket_):
    while True:
        connection, _ = socket_.accept()
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        threading.Thread(target=serve, args=(connection,), daemon=True).start()


def exchange(request, mark, first=None, pause=0.0):
    """Time of an exchange: on a connection of its own, or on one that is kept, after what is said `first` on it."""
    kept = {}

    def connect(port):
        stream = socket.create_connection(("127.0.0.1", port))
        stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if first:
            stream.sendall(first)
            assert stream.recv(4096)
        return stream

    def ask(port):
        stream = kept.get(port) or connect(port)
        if first is not None:
            kept[port] = stream
        time.sleep(pause)
        begun, heard = time.perf_counter(), b""
        stream.sendall(request)
        while mark not in heard:
            piece = stream.recv(65536)
            assert piece, heard
            heard += piece
        taken = time.perf_counter() - begun
        if first is None:
            stream.close()
        return taken

    return ask


def main(binary):
    service = socket.create_server(("127.0.0.1", 0), backlog=512)
    threading.Thread(target=listen, args=(service,), daemon=True).start()
    direct = service.getsockname()[1]
    with tempfile.NamedTemporaryFile("w", suffix=".toml") as file:
        file.write("[gate.admission]\npolicy = 'open'\n[proxy.long]\npaths = ['/named/']\n")
        file.write("[gate.slots]\nslots = 'fixed'\ncount = 64\n")
        file.flush()
        ports = ["--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0"]
        upstream = ["--upstream", f"http://127.0.0.1:{direct}", "--config", file.name]
        sidecar = subprocess.Popen([binary, "proxy", *ports, *upstream], stderr=subprocess.PIPE, text=True)
        said = next(line for line in sidecar.stderr if "listening on" in line)
        threading.Thread(target=lambda: list(sidecar.stderr), daemon=True).start()
    through = int(re.search(r"listening on 127.0.0.1:(\d+)", said)[1])
    get, post = b"GET / HTTP/1.1\r\nhost: a\r\n", b" HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n5\r\nhello\r\n"
    upgrade = get + b"connection: upgrade\r\nupgrade: websocket\r\nsec-websocket-version: 13\r\nsec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
    done = b"\r\n\r\nok"
    whole = b"POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 10000\r\n\r\n" + b"x" * 10000
    kinds = [
        ("GET", exchange(get + b"\r\n", done, first=b""), 600),
        ("POST of 10 kB", exchange(whole, done, first=b""), 600),
        ("server-sent events, the first", exchange(get + b"accept: text/event-stream\r\n\r\n", b"data: ok"), 300),
        ("WebSocket, the upgrade", exchange(upgrade, b"\r\n\r\n"), 300),
        ("WebSocket, a message", exchange(b"m" * 32, b"m" * 32, first=upgrade), 600),
        ("upload that goes on, path in long.paths", exchange(b"POST /named/a" + post, done), 300),
        ("upload that goes on, five a second", exchange(b"POST /other" + post, done, pause=0.2), 20),
        ("upload that goes on, one after the other", exchange(b"POST /other" + post, done), 20),
    ]
    try:
        for name, ask, times in kinds:
            pairs = [(ask(direct), ask(through)) for _ in range(times)][times // 10 :]
            one, other = (1e3 * statistics.median(times) for times in zip(*pairs))
            print(f"{name}: {one:.2f} direct, {other:.2f} through the sidecar, {other - one:.2f} more", flush=True)
    finally:
        sidecar.terminate()
        sidecar.wait()


if __name__ == "__main__":
    main(os.path.abspath(sys.argv[1]))
