"""What travels between nodes outside protobuf: tags, chunk records, transfer control messages.

Pure: bytes in, frozen values out, and back. Every format carries a version.
"""
