"""A topology as files that start its workers: a Procfile, a compose file, values of the Helm chart. Pure."""
