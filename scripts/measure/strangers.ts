/**
 * Durable POSTs of one owner, first alone and then beside strangers who send RATE bad ES512
 * signatures a second: how long each takes, and how long another owner's GET and /livez wait.
 */
import { fork } from 'node:child_process'
import { randomBytes } from 'node:crypto'
import { once } from 'node:events'
import { writeFileSync } from 'node:fs'
import { Agent, request } from 'node:http'
import { join } from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'
import { fileURLToPath } from 'node:url'
import {
  AUDIENCE,
  base64url,
  claims,
  ISSUER,
  jwk,
  type Members,
  p521,
  token,
} from '../../test/auth/tokens.ts'
import { launch, workFolder } from './service.ts'

const MAINS: readonly (string | undefined)[] = process.env['MAINS']?.split(',') ?? [undefined]
const RATE = Number(process.env['RATE'] ?? 240)
const SECONDS = Number(process.env['SECONDS'] ?? 5)
const ROUNDS = Number(process.env['ROUNDS'] ?? 1)
/** Half of a signature: 521 bits. */
const HALF_BYTES = 66
const TICK_MS = 10
const HEADER = { alg: 'ES512', kid: 'one' }

interface Ports {
  readonly plants: number
  readonly admin: number
}

interface Sample {
  readonly status: number
  readonly ms: number
}

const agent = new Agent({ keepAlive: true })

function call(port: number, path: string, bearer?: string, body?: string): Promise<Sample> {
  const startedAtMs = performance.now()
  const headers = {
    ...(bearer === undefined ? {} : { authorization: `Bearer ${bearer}` }),
    ...(body === undefined ? {} : { 'content-type': 'application/json' }),
  }
  const method = body === undefined ? 'GET' : 'POST'
  return new Promise((resolve) => {
    const fail = (): void => resolve({ status: 0, ms: performance.now() - startedAtMs })
    const req = request({ host: '127.0.0.1', port, path, method, agent, headers }, (res) => {
      const status = res.statusCode ?? 0
      res.on('end', () => resolve({ status, ms: performance.now() - startedAtMs })).resume()
      res.on('error', fail)
    })
    req.on('error', fail).end(body)
  })
}

function payload(sub: string): Members {
  const now = Math.floor(Date.now() / 1000)
  return claims({ sub, iat: now, exp: now + 3600 })
}

/** So many requests a second, however long each takes. */
async function attack(port: number): Promise<Sample[]> {
  const unsigned = `${base64url(HEADER)}.${base64url(payload('alice'))}`
  const begunMs = performance.now()
  const sent: Promise<Sample>[] = []
  for (let passedMs = 0; passedMs < SECONDS * 1000; passedMs = performance.now() - begunMs) {
    while (sent.length < (passedMs / 1000) * RATE) {
      // Both numbers are in range, so that it takes a whole verification to refuse them.
      const signed = randomBytes(2 * HALF_BYTES)
      signed[0] = signed[HALF_BYTES] = 0
      sent.push(call(port, '/plants', `${unsigned}.${signed.toString('base64url')}`))
    }
    await sleep(TICK_MS)
  }
  return Promise.all(sent)
}

/** In a process of its own: else the owners' requests would wait for the strangers' here. */
async function attackBeside(port: number): Promise<Sample[]> {
  const execArgv = ['--import', 'tsx']
  const child = fork(fileURLToPath(import.meta.url), [String(port)], { execArgv })
  // What the process sends, at the end of this file.
  const [samples] = (await once(child, 'message')) as [Sample[]]
  return samples
}

async function measure(ports: Ports, owners: Owners, strangers: boolean): Promise<void> {
  const { plants, admin } = ports
  const attacked = strangers ? attackBeside(plants) : Promise.resolve([])
  // The process needs so long to start.
  if (strangers) await sleep(1000)
  const untilMs = performance.now() + (SECONDS - 1) * 1000
  const each = async (made: () => Promise<Sample>, pauseMs: number): Promise<Sample[]> => {
    const samples: Sample[] = []
    for (; performance.now() < untilMs; await sleep(pauseMs)) samples.push(await made())
    return samples
  }
  const body = (): string => JSON.stringify({ id: owners.created++, name: 'x' })
  const [posts, gets, probes] = await Promise.all([
    each(() => call(plants, '/plants', owners.alice, body()), 5),
    each(() => call(plants, '/plants?limit=1', owners.bob), 20),
    each(() => call(admin, '/livez'), 20),
  ])
  const refused = await attacked
  const [bad, busy, lost] = [401, 503, 0].map((status) => {
    return refused.filter((one) => one.status === status).length
  })
  const others = [...posts, ...gets, ...probes].filter(({ status }) => status !== 200).length
  if (others > 0) throw new Error(`${others} requests of owners or probes failed`)
  console.log(strangers ? `${RATE} bad signatures a second:` : 'quiet:')
  const mean = posts.reduce((sum, { ms }) => sum + ms, 0) / posts.length
  const post = `p50 ${share(posts, 0.5)} ms, mean ${mean.toFixed(1)} ms`
  console.log(`  POST ${post}, longest ${share(posts, 1)} ms, ${posts.length} of them`)
  console.log(`  GET longest ${share(gets, 1)} ms, /livez longest ${share(probes, 1)} ms`)
  if (strangers) {
    const counts = `${bad} times 401, ${busy} times 503, ${lost} without an answer`
    console.log(`  strangers: ${counts}, longest ${share(refused, 1)} ms`)
  }
}

function share(samples: readonly Sample[], part: number): string {
  const sorted = samples.map(({ ms }) => ms).sort((a, b) => a - b)
  return (sorted[Math.ceil(part * sorted.length) - 1] ?? NaN).toFixed(1)
}

interface Owners {
  readonly alice: string
  readonly bob: string
  created: number
}

async function run(main: string | undefined, directory: string): Promise<void> {
  const keyFile = join(directory, 'jwks.json')
  writeFileSync(keyFile, JSON.stringify({ keys: [jwk(p521.publicKey, { kid: 'one' })] }))
  const service = await launch(
    join(directory, 'data'),
    { PLANTS_JWKS_FILE: keyFile, PLANTS_ISSUER: ISSUER, PLANTS_AUDIENCE: AUDIENCE },
    main,
  )
  const ports = { plants: service.port, admin: service.adminPort }
  const sign = (sub: string): string => token(HEADER, payload(sub), p521.privateKey, 'ES512')
  const owners = { alice: sign('alice'), bob: sign('bob'), created: 0 }
  for (const bearer of [owners.alice, owners.bob]) await call(ports.plants, '/plants', bearer)
  for (const strangers of [false, true]) await measure(ports, owners, strangers)
  await service.stop()
}

/** Owners' waits, quiet and beside strangers; MAINS=a/main.js,b/main.js compares builds in turn. */
export async function strangers(): Promise<void> {
  for (let round = 0; round < ROUNDS; round++) {
    for (const main of MAINS) {
      if (main !== undefined) console.log(main)
      await run(main, workFolder())
    }
  }
  agent.destroy()
}

if (process.argv[1] === fileURLToPath(import.meta.url)) {
  process.send?.(await attack(Number(process.argv[2])))
  process.disconnect()
  agent.destroy()
}
