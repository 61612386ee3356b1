import { temporaryDirectorySync } from '../../test/support/directories.ts'
import { jsonOf, Ledger } from '../../test/support/ledger.ts'
import { compare, type World } from '../../test/support/oracle/compare.ts'
import { Owner } from '../../test/support/oracle/owner.ts'
import { Realm } from '../../test/support/oracle/realm.ts'
import { readRequests } from '../../test/support/oracle/requests.ts'
import { postBytes } from '../../test/support/wire.ts'
import { WatchedService } from '../watched.ts'
import type { Finding } from './finding.ts'
import { plainScript, talk } from './talk.ts'

/** Tries to make a finding smaller; each starts a service. */
const TRIES_MAX = 25

/** Sends a finding again, to a new service that holds what was known before: what is wrong. */
export async function replay(finding: Finding): Promise<string | undefined> {
  const { script, grants, owners } = finding
  const realm = Realm.all().find(({ name }) => name === finding.realm)
  if (!realm) throw new Error(`there is no realm ${finding.realm}`)
  for (const [token, grant] of grants) realm.grants.set(token, grant)
  const world: World = { realm, owners: new Map(), shared: new Map(), ledger: new Ledger() }
  const service = new WatchedService(realm.environment(temporaryDirectorySync()))
  try {
    const port = await service.ready()
    for (const owner of owners) {
      world.owners.set(owner.name, ownerOf(owner))
      const creations = owner.plants.map(([id, plant]) =>
        postBytes(jsonOf({ id: BigInt(id), ...plant }), { token: owner.token }),
      )
      const text = creations.join('')
      if (text !== '') await talk(port, plainScript(text))
    }
    const readings = readRequests(script.text, script.ending === 'stall')
    const heard = await talk(port, script, readings)
    return compare(readings, heard, world, new Map(), false).flaw ?? service.complaints[0]
  } finally {
    await service.kill('SIGKILL')
  }
}

function ownerOf({ name, token, plants }: Finding['owners'][number]): Owner {
  const owner = new Owner(name, token)
  for (const [id, plant] of plants) owner.keep(BigInt(id), plant)
  return owner
}

/** Leaves out what the finding does not need, request by request, in a few tries. */
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
