/*
 * Good and bad requests at a moderate rate for a long time, and what becomes of the service's
 * memory. A few owners write the same few ids over and over, so that the store stays of one size
 * and what grows is a leak.
 */
import { mkdtemp, readFile, rm, writeFile } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'
import { parseArgs } from 'node:util'
import { drawCurve, type Sample, tabulate } from './fuzz/curve.ts'
import { isHead, readRequests } from './fuzz/http.ts'
import { Owner, SharedOwner } from './fuzz/model.ts'
import { mutate } from './fuzz/mutate.ts'
import { Service } from './fuzz/process.ts'
import { Random, subSeed } from './fuzz/random.ts'
import { Realm } from './fuzz/realm.ts'
import { type Actors, someRequest } from './fuzz/requests.ts'
import { talk } from './fuzz/talk.ts'
import { hopelessTokens } from './fuzz/worker.ts'

const OWNERS = 32
const CONNECTIONS = 8
/** Of one connection; each has about ten requests. */
const PAUSE_MS = 80
const SAMPLE_MS = 2000
/**
 * What the last third may have grown over the middle one, beside what was stored: about what the
 * collector's moods account for.
 */
const MARGIN_MIB = 8
/**
 * What a stored byte costs in memory, at most: the database, its index, and the page that is
 * remembered.
 */
const MEMORY_PER_BYTE = 4

const { values } = parseArgs({
  options: {
    seconds: { type: 'string', default: '600' },
    seed: { type: 'string' },
    chart: { type: 'string' },
  },
})
const seed = Number(values.seed ?? Math.floor(Math.random() * 2 ** 31))
const durationMs = Number(values.seconds) * 1000

async function memoryOf(
  pid: number,
): Promise<{ readonly residentMiB: number; readonly anonymousMiB: number }> {
  const text = await readFile(`/proc/${pid}/status`, 'utf8')
  const mib = (name: string): number =>
    Number(new RegExp(`${name}:\\s+(\\d+)`).exec(text)?.[1]) / 1024
  return { residentMiB: mib('VmRSS'), anonymousMiB: mib('RssAnon') }
}

function median(samples: readonly Sample[]): number {
  const sorted = samples.map(({ residentMiB }) => residentMiB).sort((a, b) => a - b)
  return sorted[sorted.length >> 1] ?? 0
}

/** Bytes of all lists. */
async function storedBytes(port: number, owners: readonly Owner[]): Promise<number> {
  const text = owners
    .map(({ token }) => `GET /plants HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer ${token}\r\n\r\n`)
    .join('')
  const { answers } = await talk(
    port,
    { text, cuts: [], ending: 'half-close', sendOnly: 0, pauseMs: 0, readsLate: false },
    owners.length,
    () => false,
  )
  return answers.reduce((sum, { body }) => sum + body.length, 0)
}

async function soak(): Promise<number> {
  console.log(`${durationMs / 1000} s, seed ${seed}`)
  const [realm] = Realm.all()
  const root = await mkdtemp(join(tmpdir(), 'plant-store-soak-'))
  const owners = new Map(
    Array.from({ length: OWNERS }, (_, at) => [
      `owner ${at}`,
      new Owner(`owner ${at}`, realm.tokenOf(`owner ${at}`)),
    ]),
  )
  const all = [...owners.values()]
  const others = [hopelessTokens(realm, 'other'), realm.forged('other')] as const
  const { service, port } = await Service.start({
    ...realm.environment(root),
    PLANTS_DATA: join(root, 'data'),
  })
  const samples: Sample[] = []
  const stored: number[] = []
  const faults: string[] = []
  let [requests, bad] = [0, 0]
  const startedAt = performance.now()
  const elapsed = (): number => performance.now() - startedAt

  const client = async (number: number): Promise<void> => {
    for (
      let connection = 0;
      elapsed() < durationMs && service.complaints.length === 0;
      connection++
    ) {
      const random = new Random(subSeed(seed, number, connection))
      const shared = new SharedOwner('owner 0', all[0]?.token ?? '')
      const actors: Actors = {
        owners: [random.pick(all as [Owner, ...Owner[]]), random.pick(all as [Owner, ...Owner[]])],
        shared: [shared],
        others,
        maxBodyBytes: realm.maxBodyBytes,
      }
      let text = Array.from({ length: 1 + random.below(20) }, () =>
        someRequest(random, actors, false),
      ).join('')
      if (random.chance(0.25)) text = mutate(random, text)
      const readings = readRequests(text)
      const end = random.next()
      const { answers, flaw } = await talk(
        port,
        {
          text,
          cuts: [],
          ending: end < 0.9 ? 'half-close' : end < 0.95 ? 'destroy' : 'reset',
          sendOnly: random.below(text.length + 1),
          pauseMs: 0,
          readsLate: false,
        },
        0,
        (index) => isHead(readings[index]),
      )
      requests += readings.length
      bad += answers.filter(({ status }) => status >= 400).length
      faults.push(
        ...answers
          .filter(({ status }) => status >= 500 && status !== 501)
          .map(({ status }) => `the status ${status}`),
        ...(flaw === undefined ? [] : [flaw]),
      )
      await sleep(PAUSE_MS)
    }
  }
  const sampler = async (): Promise<void> => {
    while (elapsed() < durationMs && service.complaints.length === 0) {
      samples.push({ seconds: elapsed() / 1000, ...(await memoryOf(service.pid)) })
      if (stored.length < Math.floor((elapsed() / durationMs) * 3) + 1)
        stored.push(await storedBytes(port, all))
      await sleep(SAMPLE_MS)
    }
    stored.push(await storedBytes(port, all))
  }
  await Promise.all([
    sampler(),
    ...Array.from({ length: CONNECTIONS }, (_, number) => client(number)),
  ])
  const code = await service.kill('SIGTERM')
  faults.push(
    ...service.complaints,
    ...(code === 0 ? [] : [`SIGTERM ended the service with ${code}`]),
  )
  await rm(root, { recursive: true })

  const third = Math.floor(samples.length / 3)
  const [middle, last] = [median(samples.slice(third, 2 * third)), median(samples.slice(2 * third))]
  const storedMiB = (((stored.at(-1) ?? 0) - (stored[1] ?? 0)) * MEMORY_PER_BYTE) / 1024 ** 2
  console.log(tabulate(samples))
  console.log(`requests ${requests}, ${Math.round((requests * 1000) / elapsed())} a second, of which refused ${bad}; stored ${stored.map((bytes) => `${Math.round(bytes / 1024)} KiB`).join(', ')}
middle third ${middle.toFixed(1)} MiB, last third ${last.toFixed(1)} MiB; allowed ${(MARGIN_MIB + storedMiB).toFixed(1)} MiB more`)
  if (values.chart !== undefined)
    await writeFile(
      values.chart,
      drawCurve(
        samples,
        `Memory under ${Math.round((requests * 1000) / elapsed())} good and bad requests a second`,
      ),
    )
  if (last - middle > MARGIN_MIB + storedMiB) faults.push('memory grows')
  for (const fault of faults.slice(0, 20)) console.error(`FAULT: ${fault}`)
  return faults.length === 0 ? 0 : 1
}

if (!(durationMs > 0) || !Number.isSafeInteger(seed)) {
  console.error('--seconds must be a number, more than 0, and --seed a whole number')
  process.exitCode = 2
} else process.exitCode = await soak()
