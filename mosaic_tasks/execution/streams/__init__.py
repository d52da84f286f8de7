"""What running calls publish, and what mailboxes read."""
