"""The soak: mixed clients, crashes and lost replies, and a checker of what must hold meanwhile.

`npm run soak -- --minutes N`. Clients of every kind work on the real Worker at once, the process
is killed now and then, and D1 loses replies.

- The clients: `starting_clients`, `executing_clients`, `reading_clients`, `operator_clients`,
  `takeover_and_cancel_clients`. What they share is in `clients`, what they were told in
  `client_knowledge`.
- The checks: `answer_checker` compares every answer with the earlier ones (`answer_invariants`).
  Whenever the Worker is down, `database_consistency` compares the rows of the database with each
  other, and `database_matches_answers` compares them with what the clients were told.

Not shown by it: the absence of a fault; only that these hours of work met none.
"""
