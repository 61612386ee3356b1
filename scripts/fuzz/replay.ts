import { mkdtemp, rm } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { isHead, readRequests } from './http.ts'
import { Owner } from './model.ts'
import { Service } from './process.ts'
import { Realm } from './realm.ts'
import { talk } from './talk.ts'
import { certainAnswers, compare, type World } from './witness.ts'
import type { Finding } from './worker.ts'

/** Tries to make a finding smaller; each starts a service. */
const TRIES_MAX = 25

/**
 * Sends again what a finding sent, to a fresh service that holds what was known before: gives what
 * is wrong.
 */
export async function replay({
  realm: name,
  script,
  grants,
  owners,
}: Finding): Promise<string | undefined> {
  const realm = Realm.all().find((other) => other.name === name)
  if (!realm) throw new Error(`no realm ${name}`)
  for (const [token, grant] of grants) realm.grants.set(token, grant)
  const world: World = { realm, owners: new Map(), shared: new Map() }
  const root = await mkdtemp(join(tmpdir(), 'plant-store-replay-'))
  const { service, port } = await Service.start({
    ...realm.environment(root),
    PLANTS_DATA: join(root, 'data'),
  })
  try {
    for (const { name: sub, token, plants } of owners) {
      const owner = new Owner(sub, token)
      world.owners.set(sub, owner)
      for (const [id, plant, tag] of plants)
        owner.keep(BigInt(id), tag === undefined ? { name: plant } : { name: plant, tag })
      const text = plants.map((plant) => creation(token, plant)).join('')
      if (text !== '')
        await talk(
          port,
          { text, cuts: [], ending: 'half-close', sendOnly: 0, pauseMs: 0, readsLate: false },
          0,
          () => false,
        )
    }
    const readings = readRequests(script.text, script.ending === 'stall')
    const heard = await talk(port, script, certainAnswers(readings), (index) =>
      isHead(readings[index]),
    )
    return compare(readings, heard, world, new Map(), false).flaw ?? service.complaints[0]
  } finally {
    await service.kill('SIGKILL')
    await rm(root, { recursive: true })
  }
}

function creation(token: string, [id, name, tag]: readonly [string, string, string?]): string {
  const body = Buffer.from(
    `{"id":${id},"name":${JSON.stringify(name)}${tag === undefined ? '' : `,"tag":${JSON.stringify(tag)}`}}`,
  ).toString('latin1')
  return `POST /plants HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer ${token}\r\nContent-Type: application/json\r\nContent-Length: ${body.length}\r\n\r\n${body}`
}

/** Leaves out what the finding does not need, request by request, as far as a few tries reach. */
export async function minimize(finding: Finding): Promise<Finding> {
  let best = finding
  let tries = 0
  const attempt = async (script: Finding['script']): Promise<boolean> => {
    if (tries++ >= TRIES_MAX) return false
    const what = await replay({ ...best, script })
    // Another fault must not take this one's place.
    if (what === undefined || kindOf(what) !== kindOf(finding.what)) return false
    best = { ...best, what, script }
    return true
  }
  if (!(await attempt(finding.script)))
    return { ...finding, what: `${finding.what} (not seen again)` }
  await attempt({ ...best.script, cuts: [], pauseMs: 0, readsLate: false })
  let pieces = best.script.text.split(/(?=(?:GET|HEAD|POST|OPTIONS|PUT) [/*h])/)
  for (let size = Math.ceil(pieces.length / 2); tries < TRIES_MAX; size = Math.ceil(size / 2)) {
    for (let at = 0; at < pieces.length; ) {
      const fewer = pieces.toSpliced(at, size)
      if (await attempt({ ...best.script, text: fewer.join(''), cuts: [] })) pieces = fewer
      else at += size
    }
    if (size === 1) break
  }
  return best
}

function kindOf(what: string): string {
  return what.replace(/^request \d+:? /, '').slice(0, 20)
}
