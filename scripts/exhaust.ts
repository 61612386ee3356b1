/**
 * A store of 100,000 owners and one of a million plants, asked with TOKENS tokens that were never
 * seen: what memory it takes, and whether answers stay right.
 */
import { spawn } from 'node:child_process'
import { once } from 'node:events'
import { mkdirSync, mkdtempSync, readFileSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { PlantDatabase, type Row } from '../dist/store/sqljs/database.js'
import { nodeFiles } from '../dist/store/sqljs/files.js'
import { SNAPSHOT, writeSnapshot } from '../dist/store/sqljs/snapshot.js'
import { call, post } from '../test/support/http.ts'
import { AUDIENCE, ISSUER, SECRET, token } from '../test/support/tokens.ts'
import { head, Wire } from '../test/support/wire.ts'

const OWNERS = 100_000
const PLANTS = 1_000_000
const TOKENS = Number(process.env['TOKENS'] ?? 100_000)
const BATCH = 100
const PORT = 19_850
const MAIN = new URL('../dist/main.js', import.meta.url).pathname

const work = mkdtempSync(join(tmpdir(), 'plant-store-exhaust-'))
process.on('exit', () => rmSync(work, { recursive: true, force: true }))
const data = join(work, 'data')
mkdirSync(data)
const database = await PlantDatabase.building()
for (let at = 0; at < PLANTS; at += 10_000)
  database.insert(
    Array.from(
      { length: 10_000 },
      (_, i): Row => ['million', String(2 * (at + i)), `plant ${at + i}`],
    ),
    1,
  )
for (let at = 0; at < OWNERS; at += 10_000)
  database.insert(
    Array.from({ length: 10_000 }, (_, i): Row => [`owner ${at + i}`, '1', `of ${at + i}`]),
    1,
  )
await writeSnapshot(nodeFiles, data, SNAPSHOT, database.toFile({ sequence: 1, complete: true }), 1)
database.close()

const env = {
  PATH: process.env['PATH'],
  PLANTS_LISTEN: `127.0.0.1:${PORT}`,
  PLANTS_ADMIN_LISTEN: 'off',
  PLANTS_DATA: data,
  PLANTS_ISSUER: ISSUER,
  PLANTS_AUDIENCE: AUDIENCE,
  PLANTS_JWT_SECRET: SECRET,
  PLANTS_RATE_LIMIT: '1000000',
  PLANTS_LOG_LEVEL: 'error',
}
const child = spawn(process.execPath, [MAIN, 'serve'], {
  stdio: ['ignore', 'inherit', 'inherit'],
  env,
})
const residentMiB = (): string =>
  (
    Number(/VmRSS:\s+(\d+)/.exec(readFileSync(`/proc/${child.pid}/status`, 'utf8'))?.[1]) / 1024
  ).toFixed(0)
const million = token('million')
while (
  await call(PORT, { token: million, path: '/plants?limit=1' }).then(
    () => false,
    () => true,
  )
)
  await new Promise((resolve) => setTimeout(resolve, 20))
console.log(`started: ${residentMiB()} MiB`)

let done = 0
const lane = async (from: number, to: number): Promise<void> => {
  const wire = await Wire.to(PORT)
  for (let at = from; at < to; at += BATCH) {
    const before = wire.text.length
    const owners = Array.from({ length: BATCH }, (_, i) => (at + i) % OWNERS)
    wire.write(
      owners
        .map((owner, i) =>
          head('GET', '/plants', { token: token(`owner ${owner}`, { jti: `${at + i}` }) }),
        )
        .join(''),
    )
    const wanted = owners.map((owner) => `[{"name":"of ${owner}"}]`)
    await wire.answers(at - from + BATCH)
    const got = wire.text.slice(before)
    for (const each of wanted) if (!got.includes(each)) throw new Error(`${each} is missing`)
    done += BATCH
  }
  wire.destroy()
}
// Short lanes: a wire keeps what it has read.
for (let at = 0; at < TOKENS; at += 8000) {
  await Promise.all([0, 2000, 4000, 6000].map((from) => lane(at + from, at + from + 2000)))
  if (done % 40_000 === 0)
    console.log(`${done} tokens of ${Math.min(done, OWNERS)} owners: ${residentMiB()} MiB`)
}

const timed = async <T>(what: string, work: () => Promise<T>): Promise<T> => {
  const startedAtMs = performance.now()
  const result = await work()
  console.log(`${what}: ${(performance.now() - startedAtMs).toFixed(0)} ms, ${residentMiB()} MiB`)
  return result
}
const all = await timed('a list of a million plants', () => call(PORT, { token: million }))
// The service answers with an array.
if ((all.json() as unknown[]).length !== PLANTS) throw new Error('not all')
const page = await timed('limit=999999', () =>
  call(PORT, { token: million, path: '/plants?limit=999999' }),
)
const next = /^<(.*)>/.exec(String(page.headers['link']))?.[1]
const last = await timed('limit=1 behind it', () =>
  call(PORT, { token: million, path: `/plants${next?.replace(/limit=\d+/, 'limit=1')}` }),
)
if (last.text !== `[{"name":"plant ${PLANTS - 1}"}]` || last.headers['link'] !== undefined)
  throw new Error(last.text)
const wire = await Wire.to(PORT)
wire.write(head('GET', '/plants?limit=1000000', { token: million }))
while (!wire.text.includes('\r\n\r\n')) await new Promise((resolve) => setTimeout(resolve, 1))
wire.socket.pause()
for (let i = 0; i < 100; i++)
  if ((await post(PORT, postBody(2 * i * 10_000 + 1), { token: million })).status !== 200)
    throw new Error('not created')
wire.socket.resume()
const [answer] = await wire.answers(1)
if ((JSON.parse(answer?.body ?? '') as unknown[]).length !== PLANTS)
  throw new Error('creates came into a list that was cut already')
wire.destroy()
console.log(`100 creates in the middle of a list: ${residentMiB()} MiB`)
child.kill('SIGTERM')
await once(child, 'exit')
if (child.exitCode !== 0) throw new Error(`ended with ${child.exitCode}`)

function postBody(id: number): string {
  return JSON.stringify({ id, name: 'new' })
}
