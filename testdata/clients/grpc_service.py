"""A gRPC service that never heard of us. Prints its port and serves until it is killed."""

from concurrent import futures

import grpc


def once(request, context):
    if request == b"fail":
        context.set_trailing_metadata([("why", "asked-to")])
        context.abort(grpc.StatusCode.NOT_FOUND, "nothing here")
    return b"once " + request


def count(request, context):
    for n in range(int(request)):
        yield b"%d" % n


def total(requests, context):
    return b"%d" % sum(len(request) for request in requests)


def echo(requests, context):
    for request in requests:
        yield request


handlers = {
    "Once": grpc.unary_unary_rpc_method_handler(once),
    "Count": grpc.unary_stream_rpc_method_handler(count),
    "Total": grpc.stream_unary_rpc_method_handler(total),
    "Echo": grpc.stream_stream_rpc_method_handler(echo),
}
server = grpc.server(futures.ThreadPoolExecutor(8))
server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler("test.Service", handlers)])
print(server.add_insecure_port("127.0.0.1:0"), flush=True)
server.start()
server.wait_for_termination()
