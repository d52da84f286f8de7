"""What is told to those who watch many runs: traces, figures, and what log lines say of the call they come from."""
