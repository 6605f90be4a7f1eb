"""`soloist.v1`: messages in `chat_pb2`, stub and servicer in `chat_pb2_grpc`."""
