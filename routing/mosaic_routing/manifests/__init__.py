"""A topology as files that start its workers: Procfile, compose file, values of the Helm chart. Pure: values in, text out."""
