// Signs a token with a shared secret, to try a service: node token.mjs SECRET_FILE ISSUER AUDIENCE OWNER
import { readFileSync } from 'node:fs'
import { SignJWT } from 'jose'

const [file = '', iss = '', aud = '', sub = ''] = process.argv.slice(2)
// As the service reads it: without one final line end.
const secret = new TextEncoder().encode(readFileSync(file, 'utf8').replace(/\r?\n$/, ''))
const token = new SignJWT({ iss, aud, sub }).setProtectedHeader({ alg: 'HS256' })
console.log(await token.setExpirationTime('1h').sign(secret))
