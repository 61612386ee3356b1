/*
 * Durable POSTs of one owner, first alone and then beside strangers who send RATE bad ES512
 * signatures a second: how long each takes, and how long another owner's GET and /livez wait.
 */
import { fork } from 'node:child_process'
import { randomBytes } from 'node:crypto'
import { once } from 'node:events'
import { writeFileSync } from 'node:fs'
import { Agent } from 'node:http'
import { join } from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'
import { fileURLToPath } from 'node:url'
import { temporaryDirectorySync } from '../../test/support/directories.ts'
import { call, type CallOptions } from '../../test/support/http.ts'
import { KEY_SET, PUBLIC_SIGNERS } from '../../test/support/oracle/keys.ts'
import { AUDIENCE, ISSUER, signToken } from '../../test/support/tokens.ts'
import { percentile } from '../figures.ts'
import { type MeasuredService, startMeasured } from './service.ts'

/** MAINS=a/main.js,b/main.js compares builds in turn. */
const MAINS: readonly (string | undefined)[] = process.env['MAINS']?.split(',') ?? [undefined]
const RATE = Number(process.env['RATE'] ?? 240)
const SECONDS = Number(process.env['SECONDS'] ?? 5)
const ROUNDS = Number(process.env['ROUNDS'] ?? 1)
/** Half of a signature: 521 bits. */
const HALF_BYTES = 66
const TICK_MS = 10

interface Sample {
  /** 0 without an answer. */
  readonly status: number
  readonly ms: number
}

const agent = new Agent({ keepAlive: true })
let created = 0

export async function measure(): Promise<void> {
  for (let round = 0; round < ROUNDS; round++) {
    for (const main of MAINS) {
      if (main !== undefined) console.log(main)
      const directory = temporaryDirectorySync()
      const keyFile = join(directory, 'jwks.json')
      writeFileSync(keyFile, KEY_SET)
      const env = { PLANTS_JWKS_FILE: keyFile }
      const service = await startMeasured(join(directory, 'data'), env, main)
      for (const strangers of [false, true]) await measureOwners(service, strangers)
      await service.kill('SIGKILL')
    }
  }
}

async function measureOwners(
  { port, adminPort }: MeasuredService,
  strangers: boolean,
): Promise<void> {
  const [alice, bob] = [es512Token('alice'), es512Token('bob')]
  for (const bearer of [alice, bob]) await timed(port, { token: bearer })
  const attacked = strangers ? attackBeside(port) : Promise.resolve([])
  // The process needs this long to start.
  if (strangers) await sleep(1000)
  const untilMs = performance.now() + (SECONDS - 1) * 1000
  const repeat = async (one: () => Promise<Sample>, pauseMs: number): Promise<Sample[]> => {
    const samples: Sample[] = []
    for (; performance.now() < untilMs; await sleep(pauseMs)) samples.push(await one())
    return samples
  }
  const headers = { 'content-type': 'application/json' }
  const [posts, gets, probes] = await Promise.all([
    repeat(() => {
      const body = JSON.stringify({ id: created++, name: 'x' })
      return timed(port, { method: 'POST', token: alice, headers, body })
    }, 5),
    repeat(() => timed(port, { path: '/plants?limit=1', token: bob }), 20),
    repeat(() => timed(adminPort, { path: '/livez', token: undefined }), 20),
  ])
  const refused = await attacked
  const failed = [...posts, ...gets, ...probes].filter(({ status }) => status !== 200)
  if (failed.length > 0) throw new Error(`${failed.length} requests of owners or probes failed`)
  console.log(strangers ? `${RATE} bad signatures a second:` : 'quiet:')
  console.log(`  POST p50 ${wait(posts, 0.5)}, longest ${wait(posts, 1)}, ${posts.length} of them`)
  console.log(`  GET longest ${wait(gets, 1)}, /livez longest ${wait(probes, 1)}`)
  if (!strangers) return
  const counts = [401, 503, 0].map(
    (status) => `${refused.filter((one) => one.status === status).length} times ${status}`,
  )
  console.log(`  strangers: ${counts.join(', ')}, longest ${wait(refused, 1)}`)
}

async function timed(port: number, options: CallOptions): Promise<Sample> {
  const startedAtMs = performance.now()
  const { status } = await call(port, { ...options, agent }).catch(() => ({ status: 0 }))
  return { status, ms: performance.now() - startedAtMs }
}

function wait(samples: readonly Sample[], share: number): string {
  return `${percentile(
    samples.map(({ ms }) => ms),
    share,
  ).toFixed(1)} ms`
}

function es512Token(sub: string, sign?: () => Buffer): string {
  const [header, good] = PUBLIC_SIGNERS.find(([{ alg }]) => alg === 'ES512') ?? []
  if (!header || !good) throw new Error('there is no ES512 key')
  const exp = Math.floor(Date.now() / 1000) + 3600
  return signToken(header, { iss: ISSUER, aud: AUDIENCE, sub, exp }, sign ?? good)
}

/** So many requests a second, however long each takes. */
async function attack(port: number): Promise<Sample[]> {
  const startedAtMs = performance.now()
  const sent: Promise<Sample>[] = []
  const passedMs = (): number => performance.now() - startedAtMs
  const badSignature = (): Buffer => {
    // Both numbers are in range: refusing them takes a whole verification.
    const signature = randomBytes(2 * HALF_BYTES)
    signature[0] = signature[HALF_BYTES] = 0
    return signature
  }
  for (; passedMs() < SECONDS * 1000; await sleep(TICK_MS))
    while (sent.length < (passedMs() / 1000) * RATE)
      sent.push(timed(port, { token: es512Token('alice', badSignature) }))
  return Promise.all(sent)
}

/** In its own process: here the owners' requests would wait for the strangers'. */
async function attackBeside(port: number): Promise<Sample[]> {
  const child = fork(fileURLToPath(import.meta.url), [String(port)], {
    execArgv: ['--import', 'tsx'],
  })
  // What the process sends, at the end of this file.
  const [samples] = (await once(child, 'message')) as [Sample[]]
  return samples
}

if (process.argv[1] === fileURLToPath(import.meta.url)) {
  process.send?.(await attack(Number(process.argv[2])))
  process.disconnect()
  agent.destroy()
}
