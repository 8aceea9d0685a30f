"""The worker's own program, run by the Python of the concrete-ml environment.

It imports nothing of privml: the environment holds concrete-ml 1.9.0 and its old dependencies, and
nothing else. ``python -m worker ROLE LIMITS`` reads requests from standard input and answers on
standard output, frame by frame (:mod:`.frames`), until the input ends. A process has one role for
its life: the builder sees the model, the client the keys, the server neither.

The modules import each other relatively, since the package is called ``worker`` where it runs.
"""
