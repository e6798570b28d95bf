"""What a folder comes to without a cluster: read, judged and composed, for every command that asks about one."""
