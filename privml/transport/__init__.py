"""Links between two parties: in-process, plaintext loopback, mutual TLS 1.3, and a faulty one.

Sockets and TLS are used nowhere else.
"""
