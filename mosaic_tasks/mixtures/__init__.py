"""Mixtures of experts: several are asked, until the answer is certain enough; all that decides is pure."""
