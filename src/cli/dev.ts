/* What `serve --dev` does more: its key, its log, and what it prints. */

import { readKeys } from '../auth/keys.ts'
import type { Listening } from '../service.ts'
import type { ServiceConfig } from '../settings/read.ts'
import { readWithoutKeys } from './settings.ts'
import { readOrCreateDevKey, signDevToken } from './token.ts'

export { LINES } from './lines.ts'

export function configForDev(): ServiceConfig {
  const config = readWithoutKeys(process.env, 'refused')
  const jwtSecret = readOrCreateDevKey(config.data)
  return { ...config, keys: readKeys({ issuer: config.issuer, jwtSecret }) }
}

/** Lines to paste: they create a plant and list it. */
export function invitation(config: ServiceConfig, { plants }: Listening): string {
  const scopes = [config.readScope, config.writeScope].filter((name) => name !== undefined)
  const wanted = { sub: 'alice', scope: scopes.join(' ') || undefined }
  const token = signDevToken(readOrCreateDevKey(config.data), config, wanted)
  const socket = /^unix:(.*)$/s.exec(plants)?.[1]
  const target = socket ? `--unix-socket '${socket}' http://localhost/plants` : `${plants}/plants`
  const curl = `curl -i ${target} -H 'Authorization: Bearer ${token}'`
  const where = config.etcd ? 'The key is' : 'Plants and key are'
  const plant = '{"id": 1, "name": "Monstera", "tag": "indoor"}'
  return `
The plant store listens on ${plants} with a development key; never use that key for anything real.
${where} in ${config.data}.
Paste these in another shell, to create a plant of alice and to list it (her token: 8 hours):

${curl} -H 'Content-Type: application/json' -d '${plant}'

${curl}

`
}
