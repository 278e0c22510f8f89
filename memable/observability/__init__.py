"""What can be seen of a worker process from outside: metrics, health, traces. All of it is off unless asked for."""
