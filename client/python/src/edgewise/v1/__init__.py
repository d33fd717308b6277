"""The API as the server knows it: messages (inference_pb2) and calls (service)."""
