"""Who may do what: API keys, bearer tokens of an identity provider, tenants, quotas, and the audit log."""
