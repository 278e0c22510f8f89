"""The same jobs in other queues. Each program runs in an environment of its own, which has nothing of memable's."""
