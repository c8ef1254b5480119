"""The computers of the DSMP paper, as virtual clusters; their steps take as long as on this machine."""

DSMP_C1 = {
    "name": "DSMP, configuration C1: desktop computers with four cores (i7-4790S) on a gigabit network",
    "groups": [{"name": "c1", "count": 64, "cores": 4, "link": "1gbe"}],
}
DSMP_C2 = {
    "name": "DSMP, configuration C2: one server with 64 logical cores (Xeon Gold 5218)",
    "groups": [{"name": "c2", "workers": 64, "cores": 64, "inside": "shared-memory"}],
}
