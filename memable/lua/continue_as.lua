-- continue_as: end a life of an instance and begin the next, queued, with an empty journal.
-- MOVES  running -> queued
-- USES  time, state, timers, lines, points, children, inbox, seen, bequest, knowledge, deadline
-- KEYS  instance  hash    life, input; first_input and invoked_by keep those of the first life; what is of one life goes
-- KEYS  steps     hash    goes
-- KEYS  stream    stream  a fresh entry in place of the old one
-- KEYS  timers    zset    those of open points go; its deadline starts again
-- KEYS  inbox     hash    stays, and gets what this life leaves to the next
-- KEYS  running   zset    from
-- KEYS  queued    zset    to
-- KEYS  family    hash    goes
-- KEYS  orphans   hash    or is kept here, for the leader to cancel the living children of the life that ends
-- KEYS  bereaved  zset    of which it learns here
-- ARGV  id, name, lease, known, entry, life, input, events, wake, read...
-- RETURNS  DONE the next life has begun | LEASE_LOST this run is over | FORGOTTEN what the run knows is gone
-- RETRY  by `rested_by`: DONE; once a later run has ended or was lost: LEASE_LOST. The run is over either way
local held = redis.call('HMGET', instance, 'lease', 'rested_by', 'life', 'input', 'invoked_by', 'waiting',
  'retrying', 'choosing', 'family', 'deadline_ms')
if held[1] ~= lease then return held[2] == lease and DONE or LEASE_LOST end
if is_forgotten(steps, known) then return FORGOTTEN end
withdraw_all({instance = instance, steps = steps, timers = timers, name = name}, held[6], held[7], held[8])
leave_to_next_life(instance, inbox, steps, read)
redis.call('DEL', steps)
if held[9] then leave_family({family = family, bereaved = bereaved, name = name, wake = wake}, orphans, held[3], now_ms()) end
take_from_stream(stream, entry)
local facts = drop_lease(instance, lease, 'recoveries', 'progress', 'attempt', 'started_ms', 'family', 'trace')
add_facts(facts, 'life', life, 'input', input)
-- an invoke compares its input with the one that it gave, and its retry, by the life that it made, is still the one that made it
if not held[5] then add_facts(facts, 'invoked_by', held[3], 'first_input', held[4]) end
if held[10] then
  add_facts(facts, unpack(start_deadline({timers = timers, name = name, wake = wake}, now_ms(), held[10])))
end
queue(instance, stream, id, running, queued, events, facts)
return DONE
