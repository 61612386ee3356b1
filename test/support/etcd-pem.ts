import { readFileSync } from 'node:fs'
import { fileURLToPath } from 'node:url'

/**
 * Certificates from 2020 on. `authority.pem` has signed `server`, `client`, `named` (which has a
 * CommonName) and `expired`; `self-signed` is no authority. All but the authority have `key.pem`.
 */
export function pemFile(name: string): string {
  return fileURLToPath(new URL(`../../test/fixtures/tls/${name}.pem`, import.meta.url))
}

export const AUTHORITY = readFileSync(pemFile('authority'), 'utf8')
export const CERTIFICATE = readFileSync(pemFile('client'), 'utf8')
export const KEY = readFileSync(pemFile('key'), 'utf8')
