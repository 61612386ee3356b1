/*
 * Good and bad requests at a moderate rate for a long time, and what the service's memory does. A
 * few owners write the same few ids again and again: the store keeps its size, and growth is a
 * leak.
 */
import { setTimeout as sleep } from 'node:timers/promises'
import { temporaryDirectorySync } from '../test/support/directories.ts'
import { exitOnSignals } from '../test/support/launch.ts'
import { type Memory, memoryOf } from '../test/support/memory.ts'
import { Owner } from '../test/support/oracle/owner.ts'
import { Realm } from '../test/support/oracle/realm.ts'
import { readRequests } from '../test/support/oracle/requests.ts'
import { Random, randomSeed, subSeed } from '../test/support/random.ts'
import { head } from '../test/support/wire.ts'
import { median } from './figures.ts'
import { mutate } from './fuzz/mutate.ts'
import { someRequest } from './fuzz/requests.ts'
import { plainScript, talk } from './fuzz/talk.ts'
import { hopelessTokens } from './fuzz/tokens.ts'
import { wholeNumber } from './variables.ts'
import { WatchedService } from './watched.ts'

const OWNERS = 32
const CONNECTIONS = 8
/** Of one connection; each has about ten requests. */
const PAUSE_MS = 80
const SAMPLE_MS = 2000
/** How far the last third may be above the middle one: what garbage collection accounts for. */
const MARGIN_MIB = 8
/** What a stored byte costs in memory at most: the database, its index, and the cached page. */
const MEMORY_PER_BYTE = 4

interface Sample extends Memory {
  readonly seconds: number
}

const seed = wholeNumber('SEED', randomSeed(), 0)
const durationMs = wholeNumber('SECONDS', 600) * 1000

const [realm] = Realm.all()
const owners = Array.from({ length: OWNERS }, (_, at) => `owner ${at}`).map(
  (name) => new Owner(name, realm.tokenOf(name)),
)
const others = [hopelessTokens(realm, 'other'), realm.forged('other')] as const
const samples: Sample[] = []
/** Bytes of all lists, before and after each third. */
const stored: number[] = []
const faults: string[] = []
let [requests, refused] = [0, 0]

exitOnSignals()
console.log(`${durationMs / 1000} s, seed ${seed}`)
const service = new WatchedService(realm.environment(temporaryDirectorySync()))
const port = await service.ready()
const startedAtMs = performance.now()
const elapsedMs = (): number => performance.now() - startedAtMs
const isRunning = (): boolean => elapsedMs() < durationMs && service.complaints.length === 0
await Promise.all([sampleMemory(), ...Array.from({ length: CONNECTIONS }, (_, at) => client(at))])
const rate = Math.round((requests * 1000) / elapsedMs())
const code = await service.kill('SIGTERM')
if (code !== 0) faults.push(`SIGTERM ended the service with ${code}`)
faults.push(...service.complaints)
report()
for (const fault of faults.slice(0, 20)) console.error(`FAULT: ${fault}`)
process.exit(faults.length === 0 ? 0 : 1)

async function client(number: number): Promise<void> {
  for (let connection = 0; isRunning(); connection++) {
    const random = new Random(subSeed(seed, number, connection))
    const someOwner = (): Owner => owners[random.below(OWNERS)] ?? new Owner('', '')
    const actors = {
      owners: [someOwner(), someOwner()],
      shared: [],
      others,
      maxBodyBytes: realm.maxBodyBytes,
    } as const
    const length = 1 + random.below(20)
    let text = Array.from({ length }, () => someRequest(random, actors)).join('')
    if (random.chance(0.25)) text = mutate(random, text)
    const readings = readRequests(text)
    const breaksOff = random.chance(0.5) ? 'destroy' : 'reset'
    const ending = random.chance(0.9) ? 'half-close' : breaksOff
    const script = {
      ...plainScript(text),
      ending,
      sendOnly: random.below(text.length + 1),
    } as const
    const { answers, flaw } = await talk(port, script, 0, readings)
    requests += readings.length
    refused += answers.filter(({ status }) => status >= 400).length
    for (const { status } of answers)
      if (status >= 500 && status !== 501) faults.push(`the status ${status}`)
    if (flaw !== undefined) faults.push(flaw)
    await sleep(PAUSE_MS)
  }
}

async function sampleMemory(): Promise<void> {
  while (isRunning()) {
    samples.push({ seconds: elapsedMs() / 1000, ...memoryOf(service.pid) })
    if (stored.length <= Math.floor((elapsedMs() / durationMs) * 3))
      stored.push(await storedBytes())
    await sleep(SAMPLE_MS)
  }
  stored.push(await storedBytes())
}

async function storedBytes(): Promise<number> {
  const text = owners.map(({ token }) => head('GET', '/plants', { token })).join('')
  const { answers } = await talk(port, plainScript(text), owners.length)
  return answers.reduce((sum, { body }) => sum + body.length, 0)
}

function report(): void {
  const third = Math.floor(samples.length / 3)
  const usual = (some: readonly Sample[]): number =>
    median(some.map(({ residentMiB }) => residentMiB))
  const [middle, last] = [usual(samples.slice(third, 2 * third)), usual(samples.slice(2 * third))]
  const storedMiB = (((stored.at(-1) ?? 0) - (stored[1] ?? 0)) * MEMORY_PER_BYTE) / 1024 ** 2
  const allowed = MARGIN_MIB + storedMiB
  if (last - middle > allowed) faults.push('memory grows')
  const lists = stored.map((bytes) => `${Math.round(bytes / 1024)} KiB`).join(', ')
  console.log(`${tabulate(samples)}
requests ${requests}, ${rate} a second, of which refused ${refused}; stored ${lists}
middle third ${middle.toFixed(1)} MiB, last ${last.toFixed(1)}; allowed ${allowed.toFixed(1)} more`)
}

/** A few rows, evenly spread. */
function tabulate(samples: readonly Sample[]): string {
  const step = Math.max(1, Math.floor(samples.length / 20))
  const scale = 60 / Math.max(...samples.map(({ residentMiB }) => residentMiB))
  const cell = (value: number, digits: number): string => value.toFixed(digits).padStart(7)
  const rows = samples
    .filter((_, at) => at % step === 0)
    .map(({ seconds, residentMiB, anonymousMiB }) => {
      const bar = '#'.repeat(Math.round(residentMiB * scale))
      const shown = `${cell(residentMiB, 1)} MiB, anonymous ${cell(anonymousMiB, 1)}`
      return `${cell(seconds, 0)} s ${shown} ${bar}`
    })
  return rows.join('\n')
}
