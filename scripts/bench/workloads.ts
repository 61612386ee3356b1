import { cold } from './cold.ts'
import { etcd } from './etcd.ts'
import type { Bench } from './measure.ts'
import type { Filling } from './plants.ts'

const SMALL: Filling = { users: 100, plants: 20 }
const MEDIUM: Filling = { users: 100, plants: 100 }
const LARGE: Filling = { users: 100, plants: 10_000 }
const MILLION: Filling = { users: 1000, plants: 1000 }

export const WORKLOADS: Readonly<Record<string, (bench: Bench) => Promise<void>>> = {
  get20: (bench) => bench.compare('GET of 20, 100 users in turn', SMALL, 'get'),
  get100: (bench) => bench.compare('GET of 100, 100 users in turn', MEDIUM, 'get', 100),
  cursor: (bench) => bench.compare('GET of 20 after a cursor, a new one each', LARGE, 'cursor'),
  post: (bench) => bench.compare('POST, durable', SMALL, 'post'),
  mixed: (bench) => bench.compare('9 GETs of 20 to 1 POST, 1,000,000 plants', MILLION, 'mixed'),
  cold,
  etcd,
}
