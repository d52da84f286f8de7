"""The shell around what mixtures decide: asks their experts, remembers them, counts and scores."""
