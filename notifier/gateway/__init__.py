"""The web server that pushes each user's feed to that user's open pages. Needs the extra `gateway`.

feed.py (pure) decides what a client gets next; client.py sends it; hub.py listens to Redis for all clients of a
process; auth.py says who a client is; app.py and server.py are the thin web shell.
"""
