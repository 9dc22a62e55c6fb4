"""The soak: mixed clients, crashes and lost replies, and a checker of what must hold meanwhile.

`npm run soak -- --minutes N`. Clients of every kind work on the real Worker at once, the process
is killed now and then, and D1 loses replies. `witness` holds every answer against `invariants`,
`rest` the database whenever the Worker is down.

Not shown by it: the absence of a fault; only that these hours of work met none.
"""
