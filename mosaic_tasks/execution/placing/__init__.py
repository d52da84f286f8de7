"""Where calls are asked: which target each is sent to and when, and the asking there."""
