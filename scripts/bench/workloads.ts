import { call } from '../../test/support/http.ts'
import { plantsOf } from '../../test/support/ledger.ts'
import { cold } from './cold.ts'
import { etcd } from './etcd.ts'
import type { Ask, Bench, Figures } from './measure.ts'
import type { Server } from './processes.ts'
import { user } from './plants.ts'
import type { Filling } from './stores.ts'
import { sign } from './tokens.ts'

const SMALL: Filling = { users: 100, plants: 20 }
const MEDIUM: Filling = { users: 100, plants: 100 }
const LARGE: Filling = { users: 100, plants: 10_000 }
const MILLION: Filling = { users: 1000, plants: 1000 }
const CONNECTIONS = 64

function ask(
  kind: Ask['kind'],
  filling: Filling,
  { limit = 20, connections = CONNECTIONS } = {},
): Ask {
  return { kind, limit, ...filling, connections }
}

export const WORKLOADS: Readonly<Record<string, (bench: Bench) => Promise<Figures>>> = {
  get20: (bench) => bench.compare('GET of 20, 100 users in turn', SMALL, ask('get', SMALL)),
  get100: (bench) =>
    bench.compare('GET of 100, 100 users in turn', MEDIUM, ask('get', MEDIUM, { limit: 100 })),
  cursor: (bench) =>
    bench.compare('GET of 20 after a cursor never used before', LARGE, ask('cursor', LARGE)),
  post: (bench) =>
    bench.compare('POST, durable', SMALL, ask('post', SMALL), (server) => allStored(bench, server)),
  post1: (bench) =>
    bench.compare(
      'POST, durable, 1 connection',
      SMALL,
      ask('post', SMALL, { connections: 1 }),
      (server) => allStored(bench, server),
    ),
  mixed: (bench) =>
    bench.compare('9 GETs of 20 to 1 POST, 1,000,000 plants', MILLION, ask('mixed', MILLION)),
  tokens: (bench) => bench.compare('GET of 20, every token new', SMALL, ask('tokens', SMALL)),
  cold: () => cold(MILLION),
  etcd,
}

/** Every plant that was acknowledged is listed, each once. */
async function allStored(bench: Bench, server: Server): Promise<void> {
  let found = 0
  for (let u = 0; u < SMALL.users; u++) {
    found += plantsOf((await call(server.port, { token: sign(user(u)) })).text).length
  }
  const acknowledged = SMALL.users * SMALL.plants + bench.made(server)
  if (found !== acknowledged)
    throw new Error(`${found} plants are listed, and ${acknowledged} were acknowledged`)
}
