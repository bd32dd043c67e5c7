"""A plain service for `cargo xtask peers tiers`: a pool of threads, one of which may work at a time.

python3 tier.py HOST:PORT MEAN_MS [CALLEE]

It works for an exponential time and hands on what it has done, with the request's `traceparent` as any service that is traced
does. /tally tells what was done.
"""

import http.client
import json
import random
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

host, port = sys.argv[1].rsplit(":", 1)
mean = float(sys.argv[2]) / 1e3
callee = sys.argv[3] if len(sys.argv) > 3 else None
lock, mine, draws = threading.Lock(), threading.local(), random.Random(1)
began = time.monotonic()
free, done, work = began, 0, 0.0


def do_the_work():
    """What was to be done is done when it should have been: a sleep that lasts longer is made up for by the next."""
    global free, done, work
    with lock:
        takes = draws.expovariate(1 / mean)
        free = max(free, time.monotonic()) + takes
        done, work = done + 1, work + takes
        time.sleep(max(0.0, free - time.monotonic()))


def hand_on(trace):
    for fresh in (False, True):
        if fresh or not hasattr(mine, "connection"):
            mine.connection = http.client.HTTPConnection(callee)
        try:
            mine.connection.request("GET", "/", headers={"traceparent": trace} if trace else {})
            answer = mine.connection.getresponse()
            answer.read()
            return answer.status
        except (http.client.HTTPException, OSError):
            mine.connection.close()
    return 502


class Service(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def do_GET(self):
        status, body = 200, b"ok"
        if self.path == "/tally":
            able = time.monotonic() - began
            body = json.dumps({"done": done, "work_s": work, "able_s": able}).encode()
        else:
            do_the_work()
            status = hand_on(self.headers.get("traceparent")) if callee else 200
        self.send_response(status)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


class Server(ThreadingHTTPServer):
    request_queue_size = 1024
    daemon_threads = True


Server((host, int(port)), Service).serve_forever()
