"""Everything on one machine: starts, watches and stops the roles of the service as child processes."""
