"""A gRPC client that never heard of us: calls a method of the server at argv[1] and prints what it is told.

With "retry" as argv[2] it has a retry policy: up to three attempts.
"""

import json
import sys

import grpc

RETRIES = {
    "methodConfig": [
        {
            "name": [{}],
            "retryPolicy": {
                "maxAttempts": 3,
                "initialBackoff": "0.01s",
                "maxBackoff": "0.01s",
                "backoffMultiplier": 1,
                "retryableStatusCodes": ["UNAVAILABLE"],
            },
        }
    ]
}

address, mode = sys.argv[1], sys.argv[2]
options = [("grpc.service_config", json.dumps(RETRIES))] if mode == "retry" else [("grpc.enable_retries", 0)]
with grpc.insecure_channel(address, options=options) as channel:
    call = channel.unary_unary("/test.Service/" + mode)
    try:
        call(b"", timeout=30)
        print("served")
    except grpc.RpcError as error:
        print(error.code().name)
        print(error.details())
        for key, value in error.trailing_metadata():
            if key == "grpc-status-details-bin":
                print(key, value.hex())
            elif key.startswith("grpc-"):
                print(key, value)
